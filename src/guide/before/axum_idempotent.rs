use std::sync::Arc;

use axum::Router;
use axum_idempotent::{IdempotentLayer, IdempotentOptions};
use ruts::{CookieOptions, SessionLayer, store::moka::MokaStore};
use tower_cookies::CookieManagerLayer;

fn app(payments: Router) -> Router {
    let options = IdempotentOptions::new(24 * 60 * 60).use_idempotency_key_header(None, true);
    let sessions = Arc::new(MokaStore::builder().max_capacity(1_000_000).build());
    let cookie = CookieOptions::build().name("session").max_age(24 * 60 * 60);
    payments
        .layer(IdempotentLayer::<MokaStore>::new(options))
        .layer(SessionLayer::new(sessions).with_cookie_options(cookie))
        .layer(CookieManagerLayer::new())
}
