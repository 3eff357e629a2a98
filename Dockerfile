# The pipeline with everything that `make setup` installs; see docs/operations.md, "In a container".
FROM python:3.11-slim-bookworm

RUN apt-get update \
    && apt-get install --yes --no-install-recommends make git openjdk-17-jre-headless openssh-client \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /hep-pipeline
COPY . .
RUN UV_COMPILE_BYTECODE=1 make setup

# MPI refuses root; runs go to a volume that this user owns.
RUN useradd --create-home physics && mkdir /runs && chown -R physics /runs /hep-pipeline
USER physics
VOLUME /runs
ENTRYPOINT ["/hep-pipeline/.venv/bin/python", "-m", "pipeline"]
CMD ["--help"]
