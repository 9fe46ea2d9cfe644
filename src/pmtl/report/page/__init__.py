"""One HTML page about one run or several, in one file that fetches nothing."""
