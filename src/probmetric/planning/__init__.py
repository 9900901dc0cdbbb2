"""What is to be run: from names and definition files to runs, and what Snakemake is told of them.

    metric_names   what can stand in a table
    declared       the datasets of params.yaml: source, DVC stage, what is there
    experiments    the definition files: experiments, methods, substitutions
    capabilities   what components must be able to do for a run to end
    composition    a method's definition -> plain settings
    runs           experiments -> runs, each with its folder and resolved settings
    plans          what a job is told: plan files
    staleness      which steps are finished, and whether they are what is planned
    bundles        many runs in one job
    workflow       all of it together, for the Snakefile
    jobs           the same inside a job on another machine
    summaries      what a workflow says when it ends
    overview       every experiment at a glance

Configuration is read and checked here without importing PyTorch.
"""
