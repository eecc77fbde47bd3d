# Build: docker build -t berth .
# Run:   docker run -p 127.0.0.1:7070:7070 -v berth-data:/data berth
FROM rust:1-slim-trixie AS build
RUN apt-get update && apt-get install -y --no-install-recommends build-essential && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY Cargo.toml Cargo.lock ./
COPY src src
COPY benches benches
COPY tests tests
COPY migrations migrations
COPY openapi openapi
RUN cargo build --locked --release

FROM debian:trixie-slim
# tini reaps the orphans of commands; curl asks for health.
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates curl tini && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --create-home berth && install -d -o berth -g berth /data
COPY --from=build /src/target/release/berth /usr/local/bin/berth
USER berth
VOLUME /data
# `local` runs commands inside this container, as this user: whoever holds a key may run anything in it, and in nothing else.
ENV BERTH_DATA_DIR=/data \
    BERTH_LISTEN=0.0.0.0:7070 \
    BERTH_METRICS_LISTEN=0.0.0.0:7071 \
    BERTH_PROVIDERS=local \
    BERTH_LOCAL_ALLOW_REMOTE=true
EXPOSE 7070 7071
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s CMD ["curl", "-fsS", "http://127.0.0.1:7070/healthz"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["tini", "--", "berth"]
CMD ["serve"]
