//! Getting done what is in a [journal](crate::store::journal): the [`worker`] of a queue,
//! [`webhooks`] that are delivered until they arrive, [dead letters](dead_letter) for what can't be
//! done. (Requests that are replayed are in [`replay`].)
//!
//! A webhook is a call to a URL that somebody else chose, over and over until it is answered. So
//! it must say who sends it ([`sign`]), must not be led into the sender's own network ([`guard`]),
//! must not hammer a receiver that is down ([`Schedule`]), and must not tell whoever chose the URL
//! what answered there ([`Failure`]). A receiver wants to know that it is meant ([`verify`]), and
//! that a message is new
//! ([`EventDedupLayer`](crate::server::idempotency::events::EventDedupLayer)).
//!
//! One delivery, to a receiver on this machine, which the guard has to be told about:
//!
//! ```
//! use tower_reprise::delivery::{
//!     guard::{Guard, Target},
//!     webhooks::{Delivery, MessageId, Outcome, Sender, Signer},
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
//! assert_eq!(outcome, Outcome::Delivered(http::StatusCode::OK));
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
