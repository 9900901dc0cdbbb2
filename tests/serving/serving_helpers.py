"""Names of the finished runs of the small project."""

RUNS = ("digits/arcface/seed0", "digits/arcface/seed1", "digits/laplace/seed0", "digits/ensemble/seed0")
PLAIN, LAPLACE, ENSEMBLE = RUNS[0], RUNS[2], RUNS[3]
