"""What is promised, what it costs, and the one gate through which anything is published."""
