"""The privacy statement, in words and as data."""
