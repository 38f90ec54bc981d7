use tower_reprise::server::dialect::Scope;
use tower_reprise::{IdempotencyLayer, store::CrashPolicy};

fn main() {
    let _ = IdempotencyLayer::builder("idempotency.db")
        .scope(Scope::new(|_| Some("shop")))
        .crash_policy(CrashPolicy::Reexecute)
        .build();
}
