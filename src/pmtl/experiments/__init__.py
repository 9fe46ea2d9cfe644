"""The paper's figures and tables, one file each, on data that is given or made."""
