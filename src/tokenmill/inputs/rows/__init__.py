"""Rows of files that are read row by row, and which rows and columns become documents.

CSV files and JSON arrays have no places where they could be cut without reading them. The row
filter and the text template are the same for every kind of file with columns.
"""
