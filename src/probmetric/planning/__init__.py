"""What is to be run: from names and definition files to runs, and what Snakemake is told of them.

    declared       the datasets of params.yaml: source, DVC stage, what is there
    experiments    the definition files: experiments, methods, substitutions
    capabilities   what components must be able to do for a run to end
    rehearsal      what a training would refuse before its first step, by the job's own code
    composition    a method's definition -> plain settings
    expansion      experiments -> runs, each with its folder and resolved settings
    plans          plan files of reports and of datasets
    workflow       all of it together, for the Snakefile
    console        what a workflow says while it runs, and when it ends
    overview       every experiment, and the state of its runs
    own_data       `probmetric init`: data of one's own becomes a dataset and an experiment, a project is started
    own_methods    the rows that `init` plans, and what each will take

Configuration is read and checked here without importing PyTorch, but where a network decides (`rehearsal`).
"""
