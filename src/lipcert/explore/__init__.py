"""The explorer: one image, its certificate, the nearest attack, and what lies between them."""
