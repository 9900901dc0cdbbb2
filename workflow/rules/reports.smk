"""What people look at: the report of an experiment, made by one process, and the MLflow view."""


rule report:
    input:
        again=report_again,
        metrics=experiment_files("metrics.json"),
        records=experiment_files("run.yaml"),
        made=experiment_files("made/evaluate.json"),
    output:
        runs="reports/{experiment}/runs.parquet",
        summary="reports/{experiment}/metrics.json",
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
        figures=report(
            directory("reports/{experiment}/figures"),
            patterns=["{figure}.png"],
            caption="../report/figure.rst",
            category="{experiment}",
            labels={"kind": "figure", "format": "{figure}"},
        ),
        page=report(
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
    threads: 4
    resources:
        mem_mb=4000,
        runtime=30,
    params:
        plan=report_file,
        each=ONE_THREAD_EACH,
    message:
        "Report of {wildcards.experiment}"
    shell:
        "{params.each} probmetric report {wildcards.experiment} --plan {params.plan:q} --threads {threads}"
        " > {log} 2>&1"


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
