"""Data belongs to DVC; this rule only asks for it."""


rule prepare:
    input:
        again=data_again,
    output:
        f"{PREPARED}/{{data}}/digest",
        f"{PREPARED}/{{data}}/manifest.parquet",
    log:
        "logs/prepare/{data}.log",
    benchmark:
        "benchmarks/jobs/prepare/{data}.tsv"
    priority: urgency
    conda:
        "../envs/probmetric.yaml"
    resources:
        dvc=1,
        mem_mb=2000,
        runtime=240,
    params:
        plan=lambda wildcards: PLAN.data_file,
    message:
        "Prepare {wildcards.data}"
    shell:
        "probmetric data ensure {wildcards.data} --plan {params.plan:q} > {log} 2>&1"
