# Private PostgreSQL and Redis servers for the tests; tests/run reads this file.
#
#   start_servers   installs what is missing, starts both, exports how to reach them:
#                   REPRISE_TEST_POSTGRES, REPRISE_TEST_REDIS     their addresses
#                   REPRISE_TEST_POSTGRES_BIN, ..._REDIS_BIN      where the programs are, for tests
#                                                                 that start a server of their own
#                   REPRISE_TEST_REDIS_NEWER_BIN                  a Redis of 7.2 or newer, or Valkey,
#                                                                 where Debian has one
#   stop_servers    stops what was started, and removes its files

servers_dir=
postgres_user=
redis_pid=

# Debian keeps PostgreSQL's programs off the PATH.
postgres_bin() {
    local initdb
    for initdb in /usr/lib/postgresql/*/bin/initdb "$(command -v initdb || true)"; do
        if [ -x "$initdb" ]; then
            dirname "$(readlink -f "$initdb")"
            return
        fi
    done
}

install_servers() {
    local missing=()
    [ -n "$(postgres_bin)" ] || missing+=(postgresql)
    command -v redis-server >/dev/null || missing+=(redis-server)
    # The gateway is put in front of its http.server.
    command -v python3 >/dev/null || missing+=(python3)
    [ ${#missing[@]} -gt 0 ] || return 0
    install_packages "${missing[@]}"
}

install_packages() {
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        echo "tests/run: needs $*; install them, or run this as root on Debian" >&2
        return 1
    fi
    # The packages would start servers of their own.
    local policy=/usr/sbin/policy-rc.d ours=
    if ! [ -e "$policy" ]; then
        ours=1
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod +x "$policy"
    fi
    local install=(env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends)
    local failed=
    "${install[@]}" "$@" || { apt-get update -qq && "${install[@]}" "$@"; } || failed=1
    [ -z "$ours" ] || rm -f "$policy"
    [ -z "$failed" ]
}

free_port() {
    local port
    while :; do
        port=$((20000 + RANDOM % 12000))
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || break
    done
    echo "$port"
}

# PostgreSQL refuses to run as root.
as_postgres() {
    if [ "$(id -u)" = 0 ]; then
        (cd / && runuser -u "$postgres_user" -- "$@")
    else
        "$@"
    fi
}

start_servers() {
    [ -z "$servers_dir" ] || return 0
    install_servers
    postgres_user=postgres
    id "$postgres_user" >/dev/null 2>&1 || postgres_user=nobody
    mkdir -p target
    servers_dir=$(mktemp -d "$PWD/target/servers.XXXXXX")
    chmod 711 "$servers_dir"
    if ! as_postgres env test -x "$servers_dir"; then
        rmdir "$servers_dir"
        servers_dir=$(mktemp -d)
        chmod 711 "$servers_dir"
    fi
    mkdir "$servers_dir/postgres" "$servers_dir/redis"
    [ "$(id -u)" != 0 ] || chown "$postgres_user" "$servers_dir/postgres"
    start_postgres
    start_redis
}

start_postgres() {
    local bin port dir=$servers_dir/postgres
    bin=$(postgres_bin)
    port=$(free_port)
    as_postgres "$bin/initdb" -D "$dir/data" -U reprise -A trust -E UTF8 --locale=C --no-sync >/dev/null
    as_postgres "$bin/pg_ctl" -D "$dir/data" -w -s -l "$dir/log" \
        -o "-h 127.0.0.1 -p $port -c unix_socket_directories= -c max_connections=300" start ||
        { as_postgres cat "$dir/log" >&2 && return 1; }
    # Tests put it between a store and PostgreSQL; without it they are left out.
    PATH=$PATH:/usr/sbin command -v pgbouncer >/dev/null || install_packages pgbouncer >/dev/null 2>&1 || true
    export REPRISE_TEST_POSTGRES_BIN=$bin
    export REPRISE_TEST_POSTGRES=postgres://reprise@127.0.0.1:$port/postgres
}

start_redis() {
    local port dir=$servers_dir/redis
    port=$(free_port)
    redis-server --bind 127.0.0.1 --port "$port" --dir "$dir" --save '' \
        --appendonly yes --appendfsync always >"$dir/log" 2>&1 &
    redis_pid=$!
    until (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do
        kill -0 "$redis_pid" 2>/dev/null || { cat "$dir/log" >&2 && return 1; }
        sleep 0.1
    done
    REPRISE_TEST_REDIS_BIN=$(command -v redis-server)
    export REPRISE_TEST_REDIS_BIN
    # Debian 13 has it; without one, the tests that need it are left out.
    command -v valkey-server >/dev/null || install_packages valkey-server >/dev/null 2>&1 || true
    : "${REPRISE_TEST_REDIS_NEWER_BIN:=$(command -v valkey-server || true)}"
    export REPRISE_TEST_REDIS_NEWER_BIN
    export REPRISE_TEST_REDIS=redis://127.0.0.1:$port/
}

stop_servers() {
    [ -n "$servers_dir" ] || return 0
    if [ -n "$redis_pid" ]; then
        kill "$redis_pid" 2>/dev/null || true
        wait "$redis_pid" 2>/dev/null || true
    fi
    if [ -e "$servers_dir/postgres/data/postmaster.pid" ]; then
        as_postgres "$(postgres_bin)/pg_ctl" -D "$servers_dir/postgres/data" -m immediate -s stop || true
    fi
    rm -rf "$servers_dir"
    servers_dir=
}
