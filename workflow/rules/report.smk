"""What people look at: tables, figures and one page per experiment, and the MLflow view."""


rule report:
    input:
        plan=local("state/plans/experiments/{experiment}.json"),
        metrics=results_of_experiment,
    output:
        page=report(
            "reports/{experiment}/index.html",
            caption="../report/page.rst",
            category="{experiment}",
            labels={"kind": "page", "format": "HTML"},
        ),
        figures=report(
            directory("reports/{experiment}/figures"),
            patterns=["{figure}.png"],
            caption="../report/figure.rst",
            category="{experiment}",
            labels={"kind": "figure", "format": "{figure}"},
        ),
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
        runs="reports/{experiment}/runs.parquet",
        means=directory("reports/{experiment}/metrics"),
        headline="reports/{experiment}/headline.json",
        claims="reports/{experiment}/claims.csv",
        published="reports/{experiment}/published.csv",
        plots=directory("reports/{experiment}/plots"),
    log:
        "logs/report/{experiment}.log",
    benchmark:
        "benchmarks/jobs/report/{experiment}.tsv"
    conda:
        "../envs/probmetric.yaml"
    threads: 4
    resources:
        mem_mb=4000,
        runtime=60,
    message:
        "Report on {wildcards.experiment}"
    shell:
        "probmetric report {wildcards.experiment} --plan {input.plan:q} --threads {threads} > {log} 2>&1"


rule track:
    input:
        plan=local("state/plans/experiments/{experiment}.json"),
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
    message:
        "MLflow: {wildcards.experiment}"
    shell:
        "probmetric track {wildcards.experiment} --plan {input.plan:q} --receipt {output} > {log} 2>&1"
