//! Boxes that go back to a pool of their thread. What a call needs besides its request is kept in one,
//! so that the future which each layer moves is small and a call allocates nothing. Without the boxes
//! for timers and hedges the future of `stacks::client` has some 800 bytes instead of 472.

use std::{
    cell::RefCell,
    ops::{Deref, DerefMut},
    pin::Pin,
    thread::LocalKey,
};

use tokio::time::Sleep;

/// The boxes that a thread keeps.
pub(crate) type Pool<T> = RefCell<Vec<Pin<Box<T>>>>;

/// A value whose box is used again.
pub(crate) trait Reuse: Default + 'static {
    /// Returns the pool of this thread.
    fn pool() -> &'static LocalKey<Pool<Self>>;

    /// Drops all that is not worth keeping.
    fn clear(self: Pin<&mut Self>);
}

/// A box of a pool, to which it goes back. Once its thread ends it is an ordinary box.
#[derive(Debug)]
pub(crate) struct Pooled<T: Reuse>(Option<Pin<Box<T>>>);

impl<T: Reuse> Pooled<T> {
    /// The most boxes that a thread keeps of a type.
    const MOST: usize = 64;

    /// Takes a box, with the contents that clearing left in it.
    #[inline]
    pub(crate) fn take() -> Self {
        let pooled = T::pool().try_with(|pool| pool.borrow_mut().pop());
        Self(Some(pooled.ok().flatten().unwrap_or_else(Self::empty)))
    }

    #[cold]
    fn empty() -> Pin<Box<T>> {
        Box::pin(T::default())
    }

    #[inline]
    pub(crate) fn as_mut(&mut self) -> Pin<&mut T> {
        match &mut self.0 {
            Some(boxed) => boxed.as_mut(),
            None => unreachable!("only a drop takes it"),
        }
    }
}

impl<T: Reuse> Deref for Pooled<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        match &self.0 {
            Some(boxed) => boxed,
            None => unreachable!("only a drop takes it"),
        }
    }
}

impl<T: Reuse + Unpin> DerefMut for Pooled<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.as_mut().get_mut()
    }
}

impl<T: Reuse> Drop for Pooled<T> {
    #[inline]
    fn drop(&mut self) {
        let Some(mut boxed) = self.0.take() else {
            return;
        };
        boxed.as_mut().clear();
        let _ = T::pool().try_with(|pool| {
            let mut pool = pool.borrow_mut();
            if pool.len() < Self::MOST {
                pool.push(boxed);
            }
        });
    }
}

thread_local! {
    static SLEEPS: Pool<Option<Sleep>> = const { RefCell::new(Vec::new()) };
}

impl Reuse for Option<Sleep> {
    fn pool() -> &'static LocalKey<Pool<Self>> {
        &SLEEPS
    }

    fn clear(mut self: Pin<&mut Self>) {
        self.set(None);
    }
}
