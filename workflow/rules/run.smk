"""A run is a job: train -> fit -> embed -> evaluate in one process, which skips what its records say is made.

What a run needs is said here for any machine; a site's profile says more (`set-resources`, `set-threads`).
`exec`: a scheduler's SIGTERM ends the shell at once; in its place, `probmetric` saves its state first.
"""


rule run:
    input:
        plan=local("state/plans/{run}.json"),
        before=inputs_of_run,
    output:
        MADE if UNTIL == "evaluate" else touch(MADE),
    log:
        "logs/run/{run}.log",
    benchmark:
        "benchmarks/jobs/run/{run}.tsv"
    conda:
        "../envs/probmetric.yaml"
    threads: 1
    resources:
        gpu=0,
        processes=1,
        mem_mb=lambda wildcards, attempt: attempt * 16000,
        runtime=lambda wildcards, attempt: attempt * 1440,
    params:
        until=UNTIL,
    message:
        "Run {wildcards.run}"
    shell:
        "exec probmetric run {wildcards.run} --plan {input.plan:q} --until {params.until} --threads {threads}"
        " --processes {resources.processes} > {log} 2>&1"
