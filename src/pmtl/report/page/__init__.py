"""One HTML page about one run or several: everything inside the file, nothing fetched."""
