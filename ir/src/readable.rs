//! Errors that can be read where a program ends with one.
//!
//! A `main` that returns a `Result`, `unwrap` and `expect` print an error by its `Debug`. For a person who reads it, that should be the message, with
//! its causes, and not fields of a type.

use std::error::Error;
use std::fmt;

/// Lets the `Debug` of errors write what their `Display` writes, with the causes that are not in it.
///
/// ```
/// #[derive(thiserror::Error)]
/// #[error("the port is {0}, and 1024 is the lowest")]
/// struct PortError(u16);
///
/// graphc_ir::readable_debug!(PortError);
///
/// assert_eq!(format!("{:?}", PortError(80)), "the port is 80, and 1024 is the lowest");
/// ```
#[macro_export]
macro_rules! readable_debug {
    ($($error:ty),+) => {
        $(impl ::std::fmt::Debug for $error {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                $crate::readable::write_with_causes(self, f)
            }
        })+
    };
}

/// Writes an error, and behind it those of its causes that its text does not hold.
///
/// # Errors
/// Returns an error where the formatter does.
pub fn write_with_causes(error: &dyn Error, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let text = error.to_string();
    f.write_str(&text)?;
    let mut next = error.source();
    while let Some(cause) = next {
        let said = cause.to_string();
        if !text.contains(&said) {
            write!(f, ": {said}")?;
        }
        next = cause.source();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::mesh::Placement;

    #[test]
    fn an_error_reads_alike_however_it_is_printed() {
        let error = Placement::new(vec![0, 0], vec![2]).expect_err("rank 0 is there twice");
        assert_eq!(format!("{error:?}"), error.to_string());
        assert_eq!(format!("{error:#?}"), error.to_string());
    }
}
