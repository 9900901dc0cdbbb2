"""Results on disk -> one long table, and from it statistics, tables, claims, figures and one HTML page per experiment.

Nothing here trains or evaluates: every function reads run folders or the files of `reports/<experiment>/` and
writes files. What is missing on disk is shown as "not run"; nothing is filled in.

    run folders     -> results    the long table: runs.parquet
    the long table  -> tables, claims, published: table.{md,csv,tex}, claims.csv, published.csv, what DVC reads
    run folders     -> figures    figures/<name>.{png,pdf,json,tex}
    all of them     -> page       index.html
    every page      -> site       one folder for all experiments

`report` makes all of it in one process.
"""
