"""A farm of tokenizers: files that nobody has seen yet, each compared with its own library.

    python -m reliability.farm --count 1000 --documents 2000    draw and compare
    python -m reliability.farm --one 17 --show                  one configuration again
    python -m reliability.farm prove --rules all                every proven rule set, many times
    python -m reliability.farm prove --splits                   every short text, every splitter

`drawing` draws a tokenizer file from a seed. `documents` makes hostile texts for it. `oracle` asks
the library for the ids. `comparing` encodes the same texts with tokenmill and counts differences.
"""
