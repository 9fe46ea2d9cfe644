"""What a finished run answers: for its clients, for new ones, for single rows and whole files."""
