"""The scorecard: every promise of docs/reliability.md, broken at on purpose, with the figures.

    make reliability                                    all rows, the table, reliability.json
    python -m reliability --fast                        what `make test` runs
    python -m reliability --only R2 --case 'ext4 17'    one failing case again

One module a row: `ID`, `PROMISE`, `MARK` and `run(check)`, which returns the value to print.
"""
