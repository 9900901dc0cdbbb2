"""What people look at: tables, figures, one page per experiment, and the MLflow view."""


rule aggregate:
    input:
        metrics=experiment_files("results/{run}/metrics.json"),
        records=experiment_files("results/{run}/run.yaml"),
    output:
        runs="reports/{experiment}/runs.csv",
        summary="reports/{experiment}/metrics.json",
    log:
        "logs/aggregate/{experiment}.log",
    benchmark:
        "benchmarks/jobs/aggregate/{experiment}.tsv"
    conda:
        "../envs/probmetric.yaml"
    resources:
        mem_mb=2000,
        runtime=30,
    params:
        settings=report_settings,
    message:
        "Collect the results of {wildcards.experiment}"
    shell:
        "probmetric aggregate {wildcards.experiment} --settings {params.settings:q} > {log} 2>&1"


rule tables:
    input:
        "reports/{experiment}/runs.csv",
    output:
        md=report(
            "reports/{experiment}/table.md",
            caption="../report/table.rst",
            category="{experiment}",
            labels={"kind": "table", "format": "Markdown"},
        ),
        csv=report(
            "reports/{experiment}/table.csv",
            caption="../report/table.rst",
            category="{experiment}",
            labels={"kind": "table", "format": "CSV"},
        ),
        tex="reports/{experiment}/table.tex",
        claims="reports/{experiment}/claims.csv",
        published="reports/{experiment}/published.csv",
        plots=directory("reports/{experiment}/plots"),
    log:
        "logs/tables/{experiment}.log",
    benchmark:
        "benchmarks/jobs/tables/{experiment}.tsv"
    conda:
        "../envs/probmetric.yaml"
    resources:
        mem_mb=2000,
        runtime=30,
    params:
        settings=report_settings,
    message:
        "Tables of {wildcards.experiment}"
    shell:
        "probmetric tables {wildcards.experiment} --settings {params.settings:q} > {log} 2>&1"


rule figures:
    input:
        runs="reports/{experiment}/runs.csv",
        curves=experiment_files("results/{run}/curves.json"),
        test=experiment_files("results/{run}/embeddings/test.safetensors"),
        ood=experiment_files("results/{run}/embeddings/ood.safetensors"),
    output:
        report(
            directory("reports/{experiment}/figures"),
            patterns=["{figure}.png"],
            caption="../report/figure.rst",
            category="{experiment}",
            labels={"kind": "figure", "format": "{figure}"},
        ),
    log:
        "logs/figures/{experiment}.log",
    benchmark:
        "benchmarks/jobs/figures/{experiment}.tsv"
    conda:
        "../envs/probmetric.yaml"
    resources:
        mem_mb=2000,
        runtime=30,
    params:
        settings=report_settings,
    message:
        "Figures of {wildcards.experiment}"
    shell:
        "probmetric figures {wildcards.experiment} --settings {params.settings:q} > {log} 2>&1"


rule report:
    input:
        runs="reports/{experiment}/runs.csv",
        table="reports/{experiment}/table.md",
        figures="reports/{experiment}/figures",
    output:
        report(
            "reports/{experiment}/index.html",
            caption="../report/page.rst",
            category="{experiment}",
            labels={"kind": "page", "format": "HTML"},
        ),
    log:
        "logs/report/{experiment}.log",
    benchmark:
        "benchmarks/jobs/report/{experiment}.tsv"
    conda:
        "../envs/probmetric.yaml"
    resources:
        mem_mb=2000,
        runtime=30,
    params:
        settings=report_settings,
    message:
        "Page of {wildcards.experiment}"
    shell:
        "probmetric report {wildcards.experiment} --settings {params.settings:q} > {log} 2>&1"


rule track:
    input:
        metrics=experiment_files("results/{run}/metrics.json"),
        page="reports/{experiment}/index.html",
    output:
        "state/tracked/{experiment}.json",
    log:
        "logs/track/{experiment}.log",
    benchmark:
        "benchmarks/jobs/track/{experiment}.tsv"
    conda:
        "../envs/probmetric.yaml"
    resources:
        mlflow=1,
        mem_mb=2000,
        runtime=60,
    params:
        settings=report_settings,
    message:
        "MLflow: {wildcards.experiment}"
    shell:
        "probmetric track {wildcards.experiment} --settings {params.settings:q} --receipt {output} > {log} 2>&1"


rule theory:
    output:
        "reports/theory/README.md",
    log:
        "logs/theory.log",
    benchmark:
        "benchmarks/jobs/theory.tsv"
    conda:
        "../envs/probmetric.yaml"
    resources:
        mem_mb=2000,
        runtime=30,
    message:
        "Figures that need no training"
    shell:
        "probmetric theory > {log} 2>&1"
