"""`python -m mlx_dspark` is the command."""

from mlx_dspark.cli.main import main

main()
