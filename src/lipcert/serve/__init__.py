"""A small HTTP service: post a picture, get its class and a proved radius (extra `serve`)."""
