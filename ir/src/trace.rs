//! Spans of the crate `tracing`, where the feature of that name is on: compilations and steps then show up in the traces of the
//! program that uses graphc, whatever subscriber it has. Where the feature is off a span is nothing and costs nothing.

#[cfg(feature = "tracing")]
pub use tracing;

/// A span that has been opened and is not entered. It ends when it is dropped, on whatever thread that is.
#[cfg(feature = "tracing")]
pub type OpenSpan = tracing::Span;

/// A span that has been opened: nothing, as the feature `tracing` is off.
#[cfg(not(feature = "tracing"))]
#[derive(Clone, Debug)]
pub struct OpenSpan;

/// The span that this thread is in: work that another thread does for it enters it there.
#[cfg(feature = "tracing")]
pub fn current_span() -> OpenSpan {
    tracing::Span::current()
}

/// The span that this thread is in: nothing, as the feature `tracing` is off.
#[cfg(not(feature = "tracing"))]
pub fn current_span() -> OpenSpan {
    OpenSpan
}

#[cfg(not(feature = "tracing"))]
impl OpenSpan {
    /// Enters it, which is nothing.
    pub fn entered(self) -> Self {
        self
    }
}

/// Opens a span: `open_span!("step", number = 7)`. Its parent is the span that this thread is in.
#[cfg(feature = "tracing")]
#[macro_export]
macro_rules! open_span {
    ($name:literal $(, $field:ident = $value:expr)*) => {
        $crate::trace::tracing::info_span!($name $(, $field = $value)*)
    };
}

/// Opens a span: `open_span!("step", number = 7)`. The feature `tracing` is off, so nothing is done.
#[cfg(not(feature = "tracing"))]
#[macro_export]
macro_rules! open_span {
    ($name:literal $(, $field:ident = $value:expr)*) => {{
        $(let _ = &$value;)*
        $crate::trace::OpenSpan
    }};
}

/// Opens a span and enters it, until the value is dropped: `let _span = enter_span!("lower");`.
#[cfg(feature = "tracing")]
#[macro_export]
macro_rules! enter_span {
    ($($what:tt)*) => { $crate::open_span!($($what)*).entered() };
}

/// Opens a span and enters it: `let _span = enter_span!("lower");`. The feature `tracing` is off, so nothing is done.
#[cfg(not(feature = "tracing"))]
#[macro_export]
macro_rules! enter_span {
    ($($what:tt)*) => { $crate::open_span!($($what)*) };
}
