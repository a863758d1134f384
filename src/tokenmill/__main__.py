"""`python -m tokenmill` is the `tokenmill` command."""

try:
    from tokenmill.cli.main import main
except KeyboardInterrupt:  # before anything has begun
    raise SystemExit(130) from None

if __name__ == "__main__":
    main()
