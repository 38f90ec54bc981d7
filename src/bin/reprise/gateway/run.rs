//! From start to end: listen, serve, reload, stop.

use std::{net::SocketAddr, process::ExitCode, sync::Arc, time::Duration};

use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use tokio::{
    net::TcpListener,
    signal::unix::{Signal, SignalKind, signal},
    sync::watch,
    task::JoinHandle,
    time::{Instant, MissedTickBehavior, interval, sleep, timeout_at},
};
use tower_reprise::error::BoxError;

use crate::{
    admin::{self, Admin, Guard, StoreAdmin},
    gateway::access::AccessLog,
    gateway::cores::Cores,
    gateway::policy::Registries,
    gateway::reload::{Reload, Reloaded},
    gateway::server::{self, Edge},
    gateway::settings::Settings,
    gateway::stack,
    gateway::systemd,
    gateway::traffic::{self, Traffic},
    gateway::tunnel::Tunnels,
    gateway::upstreams::Upstreams,
    store::Store,
    usage_error::UsageError,
};

pub(crate) async fn run(
    settings: Settings,
    socket: Option<std::net::TcpListener>,
    access_log: Option<AccessLog>,
    reload: Reload,
) -> Result<ExitCode, BoxError> {
    let signals = Signals::new()?;
    let prometheus = PrometheusBuilder::new()
        .set_buckets(&traffic::BOUNDS)?
        .install_recorder()?;
    traffic::describe();
    let traffic = Arc::new(Traffic::new());
    let listener = listen(socket, settings.listen).await?;
    let (stopping, stop) = watch::channel(false);
    let registries = Registries::new(&settings.policies);
    let upstreams = Upstreams::new(&settings.upstreams, &settings.routes)?;
    let cores = Cores::start()?;
    let tunnels = Tunnels::new(registries.upstream.clone());
    let parts = Reloaded {
        registries: registries.clone(),
        upstreams: upstreams.clone(),
        tls: settings.tls.clone(),
    };
    if settings.bare {
        let service = stack::bare(upstreams.clone());
        let edge = Edge::new(service, upstreams, None, traffic, tunnels, access_log);
        say("listening", &listener, settings.tls.is_some())?;
        let signals = signals.handle(reload, parts, stopping);
        server::serve(listener, edge, &settings, &cores, stop).await;
        signals.abort();
        return Ok(ExitCode::SUCCESS);
    }

    let store = settings.store.open().await?;
    let (service, behind) = stack::layered(&settings, &upstreams, &store, &registries).await?;
    let replays = settings.replay_path.as_deref();
    let replays = replays.map(|path| (path, behind.replay.routes()));
    let edge = Edge::new(
        service,
        upstreams.clone(),
        replays,
        traffic,
        tunnels.pausing_for(behind.replay.maintenance()),
        access_log,
    );

    // Operators are served until the very end.
    let (closing, closed) = watch::channel(false);
    let admin = match settings.admin {
        None => None,
        Some(address) => {
            let listener = bind("admin", address).await?;
            say("admin", &listener, false)?;
            let admin = Admin {
                store_admin: StoreAdmin::new(
                    store.clone(),
                    behind.replay.clone(),
                    behind.letters.clone(),
                ),
                registries,
                upstreams,
                prometheus: prometheus.clone(),
                draining: stop.clone(),
            };
            let guard = Guard::new(settings.admin_token.clone());
            Some(tokio::spawn(admin::serve(listener, admin, guard, closed)))
        }
    };
    let upkeep = tokio::spawn(upkeep(prometheus, store.clone()));
    tracing::info!(
        upstreams = %settings.upstream_names(),
        store = settings.store.kind(),
        scope = %settings.scope_header,
        anonymous = settings.anonymous.as_deref().unwrap_or("refused"),
        "the gateway is open"
    );
    say("listening", &listener, settings.tls.is_some())?;
    systemd::tell("READY=1");

    let signals = signals.handle(reload, parts, stopping);
    let (orderly, until) = server::serve(listener, edge, &settings, &cores, stop).await;
    for worker in behind.workers {
        worker.shutdown(left(until)).await;
    }
    let orderly = orderly && settled(&store, until).await;
    closing.send_replace(true);
    if let Some(admin) = admin {
        let _ = timeout_at(Instant::now() + Duration::from_secs(1), admin).await;
    }
    upkeep.abort();
    signals.abort();
    match orderly {
        true => tracing::info!("the gateway is closed"),
        false => tracing::warn!("the gateway is closed, and something was broken off"),
    }
    Ok(ExitCode::SUCCESS)
}

fn left(until: Instant) -> Duration {
    until.saturating_duration_since(Instant::now())
}

/// Waits for operations whose callers are gone.
async fn settled(store: &Store, until: Instant) -> bool {
    while store.executing() > 0 {
        if Instant::now() >= until {
            return false;
        }
        sleep(Duration::from_millis(10)).await;
    }
    true
}

/// The socket for callers: systemd's, or one of the gateway's own.
async fn listen(
    socket: Option<std::net::TcpListener>,
    address: Option<SocketAddr>,
) -> Result<TcpListener, BoxError> {
    match (socket, address) {
        (Some(socket), _) => Ok(TcpListener::from_std(socket)?),
        (None, Some(address)) => Ok(bind("listen", address).await?),
        (None, None) => Err(UsageError::missing("listen", "an address and a port").into()),
    }
}

async fn bind(field: &str, address: SocketAddr) -> Result<TcpListener, UsageError> {
    let bound = TcpListener::bind(address).await;
    let allowed = |error| format!("an address of this machine that is free ({error})");
    bound.map_err(|error| UsageError::new(field, &address.to_string(), allowed(error)))
}

/// On stdout, for who started the gateway: with port 0, that is how to find out which it is.
fn say(what: &str, listener: &TcpListener, tls: bool) -> Result<(), BoxError> {
    let scheme = if tls { "https" } else { "http" };
    println!("{what} on {scheme}://{}", listener.local_addr()?);
    Ok(())
}

async fn upkeep(prometheus: PrometheusHandle, store: Store) {
    let executing = metrics::gauge!("gateway_executing");
    let mut ticks = interval(Duration::from_secs(5));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        executing.set(store.executing() as f64);
        prometheus.run_upkeep();
    }
}

/// The signals that the gateway handles.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    /// From here on they do not end the process.
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    fn handle(
        mut self,
        mut reload: Reload,
        parts: Reloaded,
        stopping: watch::Sender<bool>,
    ) -> JoinHandle<()> {
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = self.hang_up.recv() => reload.now(&parts),
                    _ = self.terminate.recv() => stop(&stopping),
                    _ = self.interrupt.recv() => stop(&stopping),
                }
            }
        })
    }
}

/// Gently at first. Who asks again wants it at once.
fn stop(stopping: &watch::Sender<bool>) {
    if stopping.send_replace(true) {
        tracing::warn!("told to stop twice");
        std::process::exit(1);
    }
    systemd::tell("STOPPING=1");
}
