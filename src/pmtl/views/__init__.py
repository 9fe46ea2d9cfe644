"""How results look in Python: tables and frames, a line of text, a small piece of HTML."""
