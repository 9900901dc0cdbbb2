"""What people look at: tables, figures, one page per experiment, and the MLflow view."""


rule aggregate:
    input:
        again=report_again,
        metrics=experiment_files("metrics.json"),
        records=experiment_files("run.yaml"),
        made=experiment_files("made/evaluate.json"),
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
        plan=report_file,
    message:
        "Collect the results of {wildcards.experiment}"
    shell:
        "probmetric aggregate {wildcards.experiment} --plan {params.plan:q} > {log} 2>&1"


rule tables:
    input:
        report_files("runs.csv"),
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
        plan=report_file,
    message:
        "Tables of {wildcards.experiment}"
    shell:
        "probmetric tables {wildcards.experiment} --plan {params.plan:q} > {log} 2>&1"


rule figures:
    input:
        runs=report_files("runs.csv"),
        curves=experiment_files("curves.json"),
        test=experiment_files("embeddings/test.safetensors"),
        ood=experiment_files("embeddings/ood.safetensors"),
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
    threads: 4
    resources:
        mem_mb=4000,
        runtime=30,
    params:
        plan=report_file,
        each=ONE_THREAD_EACH,
    message:
        "Figures of {wildcards.experiment}"
    shell:
        "{params.each} probmetric figures {wildcards.experiment} --plan {params.plan:q} --threads {threads}"
        " > {log} 2>&1"


rule report:
    input:
        files=report_files("runs.csv", "table.md", "figures"),
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
        plan=report_file,
    message:
        "Page of {wildcards.experiment}"
    shell:
        "probmetric report {wildcards.experiment} --plan {params.plan:q} > {log} 2>&1"


rule track:
    input:
        metrics=experiment_files("metrics.json"),
        page=report_files("index.html"),
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
        plan=report_file,
    message:
        "MLflow: {wildcards.experiment}"
    shell:
        "probmetric track {wildcards.experiment} --plan {params.plan:q} --receipt {output} > {log} 2>&1"


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
