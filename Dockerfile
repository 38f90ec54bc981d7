# The program `reprise`, from Debian's packages alone:
#
#     docker build -t reprise .
#     docker run -p 8080:8080 -v ./gateway.toml:/etc/reprise/gateway.toml:ro -v reprise:/var/lib/reprise reprise
#
# In the container `listen` is 0.0.0.0:8080. The admin port is for the container alone, unless it has a
# token: admin = "0.0.0.0:8081" with an admin-token-file.
FROM debian:trixie-slim AS build
# Rust newer than the release's, from Debian's own backports.
RUN echo 'deb http://deb.debian.org/debian trixie-backports main' >/etc/apt/sources.list.d/backports.list \
    && apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates gcc libc6-dev \
    && apt-get install -y --no-install-recommends -t trixie-backports cargo rustc
WORKDIR /src
COPY . .
RUN cargo build --locked --profile dist --features cli,postgres,redis --bin reprise

FROM debian:trixie-slim
# SQLite's file goes here: a volume, owned by the user of the process.
RUN install -d -o 65532 -g 65532 /var/lib/reprise
COPY --from=build /src/target/dist/reprise /usr/local/bin/reprise
USER 65532:65532
WORKDIR /var/lib/reprise
VOLUME /var/lib/reprise
EXPOSE 8080
STOPSIGNAL SIGTERM
ENTRYPOINT ["reprise"]
CMD ["gateway", "--config", "/etc/reprise/gateway.toml"]
