# The pipeline with everything that `make setup` installs; see docs/site.md, "In a container".
FROM python:3.11-slim-bookworm

RUN apt-get update \
    && apt-get install --yes --no-install-recommends make openjdk-17-jre-headless openssh-client \
    && rm -rf /var/lib/apt/lists/*

# MPI refuses root. The environment belongs to this user from the beginning: a later chown would store all of it twice.
RUN useradd --create-home physics && mkdir /runs /hep-pipeline && chown physics /runs /hep-pipeline
USER physics
WORKDIR /hep-pipeline
COPY --chown=physics . .
RUN UV_COMPILE_BYTECODE=1 make setup && rm -rf ~/.cache

# Runs go to a volume.
VOLUME /runs
ENTRYPOINT ["/hep-pipeline/.venv/bin/python", "-m", "pipeline"]
CMD ["--help"]
