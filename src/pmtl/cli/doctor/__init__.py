"""`pmtl doctor`: what is installed and usable here."""
