//! The output for a call that fails for good: in the log, and in Prometheus.

use std::{
    io::{self, Write},
    sync::{Arc, Mutex, PoisonError},
};

use http::{Request, Response};
use metrics_exporter_prometheus::PrometheusBuilder;
use tower::{Service, ServiceBuilder, ServiceExt, service_fn};
use tower_reprise::{Dependencies, Policy, error::BoxError, stacks};
use tower_reprise_users::Result;

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .write(text)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() -> Result {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt()
        .with_writer(move || writer.clone())
        .with_ansi(false)
        .init();
    let metrics = PrometheusBuilder::new().install_recorder()?;

    let down = service_fn(async |_: Request<String>| {
        Err::<Response<String>, BoxError>(io::Error::from(io::ErrorKind::ConnectionRefused).into())
    });
    let deps = Dependencies::new(Policy::http().service("checkout").build()?);
    let mut client = ServiceBuilder::new()
        .layer(stacks::client(deps))
        .service(down);
    let request = Request::get("http://stock.example/")
        .header("x-request-id", "req-1")
        .body(String::new())?;
    let error = client.ready().await?.call(request).await.unwrap_err();
    println!("{error}");
    assert!(
        error
            .to_string()
            .starts_with("stock.example: connection refused (")
    );

    let log = log.0.lock().unwrap_or_else(PoisonError::into_inner);
    let log = String::from_utf8_lossy(&log).into_owned();
    println!("{log}{}", metrics.render());
    assert_eq!(
        log.matches(" WARN ").count(),
        1 + log.matches("circuit breaker opened").count()
    );
    assert!(log.contains("gave up") && log.contains("req-1"));
    assert!(metrics.render().contains("retry_attempts_total"));
    Ok(())
}
