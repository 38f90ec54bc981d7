//! reqwest's error type: the kinds whose sources have no known type.

use std::{any::Any, error::Error};

use super::Facts;
use crate::{call::Cause, error::find};

pub(super) fn inspect(error: &(dyn Error + 'static), facts: &mut Facts) {
    let Some(error) = error.downcast_ref::<reqwest::Error>() else {
        return;
    };
    if error.is_dns() {
        facts.note(Cause::Dns);
    } else if error.is_builder() || error.is_redirect() {
        facts.note(Cause::Configuration);
    } else if error.is_timeout() {
        facts.note(Cause::Timeout);
    } else if error.is_decode() && find::<hyper::Error>(error).is_none() {
        // reqwest reports a truncated body as a decoding error too.
        facts.note(Cause::Serialization);
    }
}

/// Downcasts a value to this error type.
pub(super) fn downcast(error: &dyn Any) -> Option<&(dyn Error + 'static)> {
    let error = error.downcast_ref::<reqwest::Error>();
    error.map(|error| error as _)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c_9_an_error_of_reqwests_is_known_where_only_its_type_is() {
        let error = reqwest::Proxy::http("http://[").expect_err("no address");
        let known = downcast(&error).expect("an error");
        let mut facts = Facts::default();
        inspect(known, &mut facts);
        assert_eq!(facts.cause, Some(Cause::Configuration));
        assert!(downcast(&"text").is_none());
    }
}
