//! From start to end: listen, serve, reload, stop.

use std::{net::SocketAddr, sync::Arc, time::Duration};

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
    admin::{self, Admin, Books, Guard},
    gateway::policy::Registries,
    gateway::server::{self, Edge},
    gateway::settings::Settings,
    gateway::stack,
    gateway::systemd,
    gateway::tls::Tls,
    gateway::traffic::{self, Traffic},
    gateway::tunnel::Tunnels,
    gateway::upstream::{self, Target},
    store::Store,
    usage_error::UsageError,
};

pub(crate) async fn run(settings: Settings) -> Result<(), BoxError> {
    let signals = Signals::new()?;
    let prometheus = PrometheusBuilder::new()
        .set_buckets(&traffic::BOUNDS)?
        .install_recorder()?;
    traffic::describe();
    let traffic = Arc::new(Traffic::new());
    let listener = bind("listen", settings.listen).await?;
    let (stopping, stop) = watch::channel(false);
    let registries = Registries::new(&settings.policies);
    let target = Target::new(&settings)?;
    let tunnels = Tunnels::new(upstream::client(&settings)?);
    if settings.bare {
        let service = stack::bare(&settings, target.clone())?;
        let edge = Edge::new(
            service,
            target,
            None,
            traffic,
            tunnels,
            settings.access_log.clone(),
        );
        say("listening", &listener, settings.tls.is_some())?;
        let signals = signals.handle(registries, &settings, stopping);
        server::serve(listener, edge, &settings, stop).await;
        signals.abort();
        return Ok(());
    }

    let store = settings.store.open().await?;
    let (service, behind) = stack::layered(&settings, target.clone(), &store, &registries).await?;
    let replays = settings.replay_path.as_deref();
    let replays = replays.map(|path| (path, behind.replay.routes()));
    let edge = Edge::new(
        service,
        target.clone(),
        replays,
        Arc::clone(&traffic),
        tunnels,
        settings.access_log.clone(),
    );

    // Operators are served until the very end.
    let (closing, closed) = watch::channel(false);
    let admin = match settings.admin {
        None => None,
        Some(address) => {
            let listener = bind("admin", address).await?;
            say("admin", &listener, false)?;
            let admin = Admin {
                books: Books::new(store.clone(), behind.replay.clone(), behind.letters.clone()),
                registries: registries.clone(),
                target,
                traffic,
                prometheus: prometheus.clone(),
                draining: stop.clone(),
            };
            let guard = Guard::new(settings.admin_token.clone());
            Some(tokio::spawn(admin::serve(listener, admin, guard, closed)))
        }
    };
    let upkeep = tokio::spawn(upkeep(prometheus, store.clone()));
    tracing::info!(
        upstream = %settings.upstream,
        store = settings.store.kind(),
        scope = %settings.scope_header,
        anonymous = settings.anonymous.as_deref().unwrap_or("refused"),
        "the gateway is open"
    );
    say("listening", &listener, settings.tls.is_some())?;
    systemd::tell("READY=1");

    let signals = signals.handle(registries, &settings, stopping);
    let (orderly, until) = server::serve(listener, edge, &settings, stop).await;
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
    Ok(())
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
        registries: Registries,
        settings: &Settings,
        stopping: watch::Sender<bool>,
    ) -> JoinHandle<()> {
        let (policy, tls) = (settings.policy_file.clone(), settings.tls.clone());
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = self.hang_up.recv() => reload(&registries, policy.as_deref(), tls.as_ref()),
                    _ = self.terminate.recv() => stop(&stopping),
                    _ = self.interrupt.recv() => stop(&stopping),
                }
            }
        })
    }
}

/// Reads what may have changed again.
fn reload(registries: &Registries, policy: Option<&str>, tls: Option<&Tls>) {
    if let Some(tls) = tls {
        tls.reload();
    }
    if policy.is_some() || tls.is_none() {
        registries.reload(policy);
    }
}

/// Gently at first. Who asks again wants it at once.
fn stop(stopping: &watch::Sender<bool>) {
    if stopping.send_replace(true) {
        tracing::warn!("told to stop twice");
        std::process::exit(1);
    }
    tracing::info!("finishing what is under way");
    systemd::tell("STOPPING=1");
}
