"""Views of results: tables and frames, a line of text, HTML for notebooks, a progress bar."""
