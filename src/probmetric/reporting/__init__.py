"""Reports: from results on disk to one long table, statistics, tables, claims, figures and an HTML page per experiment.

This package does not train or evaluate. Every function reads run folders or the files of `reports/<experiment>/` and
writes files. A result that is missing on disk is shown as "not run".

    run folders     -> results    the long table: runs.parquet
    the long table  -> tables, claims, published: table.{md,csv,tex}, claims.csv, published.csv, DVC's files
    run folders     -> figures    figures/<name>.{png,pdf,json,tex}
    all of them     -> page       index.html
    every page      -> site       one folder for all experiments

`report` makes all of it in one process.
"""
