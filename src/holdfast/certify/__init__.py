"""Certificates: proved bounds, radii, records."""
