"""How results look: tables and frames, a line of text, a small piece of HTML, a progress bar."""
