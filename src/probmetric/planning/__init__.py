"""Plan runs: expand names and definition files to runs, and write the plan files that Snakemake's jobs read.

    declared       the datasets of params.yaml: source, DVC stage, which files are there
    experiments    the definition files: experiments, methods, substitutions
    capabilities   what components must be able to do for a run to end
    rehearsal      whether a training would fail before its first step, found by the job's own code
    composition    a method's definition -> plain settings
    expansion      experiments -> runs, each with its folder and resolved settings
    plans          plan files of reports and of datasets
    workflow       all of it together, for the Snakefile
    console        messages of a workflow while it runs, and at its end
    overview       every experiment, and the state of its runs
    own_data       `probmetric init`: start a project, make a dataset and an experiment of the user's own data
    own_methods    the rows that `init` plans, and the time that each takes

Configuration is read and checked here without PyTorch; only `rehearsal` imports it, where a network decides.
"""
