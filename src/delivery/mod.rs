//! Work that outlives a call: replayed requests, webhooks, and dead letters, in the queues of a
//! [journal](crate::store::journal).
//!
//! | module | purpose |
//! | --- | --- |
//! | [`worker`] | leases the entries of a queue and passes them to a handler |
//! | [`replay`] | journals requests that can't be served now, and executes them later |
//! | [`webhooks`] | delivers signed events to other people's servers; verifies those received |
//! | [`dead_letter`] | keeps entries that failed for good, alerts, and redrives them |
//! | [`guard`] | keeps calls to users' URLs out of the sender's own network |
//!
//! One delivery of a webhook, to a receiver on this machine, which the guard has to allow:
//!
//! ```
//! use tower_reprise::delivery::{
//!     guard::{Guard, Target},
//!     webhooks::{Delivery, MessageId, DeliveryOutcome, Sender, Signer},
//!     webhooks::verify::{Verifier, WebhookVerifyLayer},
//! };
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
//!
//! let verified = WebhookVerifyLayer::new(Verifier::new(SECRET)?);
//! let app = axum::Router::new()
//!     .route("/orders", axum::routing::post(|body: String| async move { assert_eq!(body, "{}") }))
//!     .layer(verified);
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
//! let url = format!("http://{}/orders", listener.local_addr()?);
//! tokio::spawn(async move { axum::serve(listener, app).await });
//!
//! let guard = Guard::new().allow_http().allow("127.0.0.1")?;
//! let target = Target::parse(&url, &guard)?;
//! let sender = Sender::builder(guard).build()?;
//!
//! let delivery = Delivery::new(target, MessageId::random(), "{}");
//! let outcome = sender.send(&delivery, &Signer::new(SECRET)?).await;
//! assert_eq!(outcome, DeliveryOutcome::Delivered(http::StatusCode::OK));
//! # Ok(())
//! # }
//! ```

pub mod dead_letter;
pub mod guard;
pub(crate) mod redact;
pub mod replay;
pub(crate) mod stored_message;
pub mod webhooks;
pub mod worker;

pub use self::redact::is_credential;
