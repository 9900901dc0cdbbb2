"""Results on disk -> tidy files, statistics, tables, figures and one HTML page per experiment.

Nothing here trains or evaluates: every function reads run folders or the files of `reports/<experiment>/` and
writes files. What is missing on disk is shown as "not run"; nothing is filled in.

    results/**/metrics.json -> aggregate -> runs.csv, metrics.json
    runs.csv                -> tables    -> table.{md,csv,tex}
    results, runs.csv       -> figures   -> figures/<name>.{png,pdf,json}
    all of them             -> html      -> index.html
    every index.html        -> site      -> one folder for all experiments
"""
