"""Data belongs to DVC; this rule only asks for it."""


rule prepare:
    input:
        local("state/plans/data/{data}.json"),
    output:
        f"{PREPARED}/{{data}}/digest",
    log:
        "logs/prepare/{data}.log",
    benchmark:
        "benchmarks/jobs/prepare/{data}.tsv"
    priority: 1
    conda:
        "../envs/probmetric.yaml"
    resources:
        dvc=1,
        mem_mb=2000,
        runtime=240,
    message:
        "Prepare {wildcards.data}"
    shell:
        "probmetric data ensure {wildcards.data} --plan state/plans/data.json > {log} 2>&1"
