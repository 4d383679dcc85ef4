//! Declarations of formulas: name in manifests, documentation, and parameters with their ranges.
//!
//! `formula!` declares one formula as the struct of its parameters. `register!` lists the formulas of a
//! family, and generates the enum of their names (for the custom resource) and the enum of the formulas
//! themselves.

mod choice;
mod parameters;
#[macro_use]
mod registry;

use std::fmt::Debug;

use serde::Serialize;

pub use choice::choice_schema;
pub use parameters::Parameters;

/// A parameter of formulas in manifests. Formulas of a family may share one, with different defaults.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameter {
    /// Name of the field in manifests.
    pub name: &'static str,
    /// Documentation of the parameter: its meaning, the formulas that use it, and their defaults.
    pub doc: &'static str,
    /// Range of allowed values.
    pub range: Range,
}

/// Range of values that a parameter may have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Range {
    /// A boolean parameter.
    Flag,
    /// A number between two bounds, both included.
    Number {
        /// Smallest value, included.
        min: f64,
        /// Largest value, included.
        max: f64,
    },
}

impl Parameter {
    /// Declares a number between `min` and `max`.
    pub const fn number(name: &'static str, min: f64, max: f64, doc: &'static str) -> Self {
        Self { name, doc, range: Range::Number { min, max } }
    }

    /// Declares a boolean parameter.
    pub const fn flag(name: &'static str, doc: &'static str) -> Self {
        Self { name, doc, range: Range::Flag }
    }
}

/// Value of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum ParameterValue {
    /// Value of a boolean parameter.
    Flag(bool),
    /// Value of a number.
    Number(f64),
}

impl From<f64> for ParameterValue {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl From<bool> for ParameterValue {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

/// The type of a formula's parameter.
pub trait ParameterType: Copy {
    /// Returns the given value, or the formula's default.
    fn read(given: Option<ParameterValue>, default: Self) -> Self;
    /// Converts to the value in manifests; `None` if the formula works without one.
    fn write(self) -> Option<ParameterValue>;
}

impl ParameterType for f64 {
    fn read(given: Option<ParameterValue>, default: Self) -> Self {
        Option::read(given, Some(default)).unwrap_or(default)
    }

    fn write(self) -> Option<ParameterValue> {
        Some(self.into())
    }
}

impl ParameterType for bool {
    fn read(given: Option<ParameterValue>, default: Self) -> Self {
        match given {
            Some(ParameterValue::Flag(flag)) => flag,
            _ => default,
        }
    }

    fn write(self) -> Option<ParameterValue> {
        Some(self.into())
    }
}

impl ParameterType for Option<f64> {
    fn read(given: Option<ParameterValue>, default: Self) -> Self {
        match given {
            Some(ParameterValue::Number(number)) => Some(number),
            _ => default,
        }
    }

    fn write(self) -> Option<ParameterValue> {
        self.map(ParameterValue::Number)
    }
}

/// The declaration of a formula by `formula!`.
pub trait Declared: Sized {
    /// Name of the formula in manifests.
    const NAME: &'static str;
    /// Documentation of the formula. The first paragraph is the description in the CRD.
    const DOC: &'static str;
    /// Parameters of the formula.
    const PARAMETERS: &'static [&'static Parameter];
    /// Makes the formula with the given parameters, and its defaults for the others.
    fn read(given: &dyn Fn(&Parameter) -> Option<ParameterValue>) -> Self;
    /// Returns the formula's parameters with their values, as in manifests.
    fn write(&self) -> Vec<(&'static str, ParameterValue)>;
}

/// Formulas of which a manifest chooses one by name.
pub trait Family: Copy + Debug + PartialEq + Sized + Serialize + 'static {
    /// Every formula, in the order of the documentation.
    const ALL: &'static [Self];
    /// Name of the formula in manifests.
    fn name(self) -> &'static str;
    /// Documentation of the formula.
    fn doc(self) -> &'static str;
    /// Parameters of the formula.
    fn parameters(self) -> &'static [&'static Parameter];

    /// Returns the parameters of all formulas, each once.
    fn all_parameters() -> Vec<&'static Parameter> {
        let mut all: Vec<&'static Parameter> = Vec::new();
        for parameter in Self::ALL.iter().flat_map(|formula| formula.parameters()) {
            if !all.iter().any(|known| known.name == parameter.name) {
                all.push(parameter);
            }
        }
        all
    }

    /// Whether the formula has this parameter.
    fn uses(self, parameter: &Parameter) -> bool {
        self.parameters().iter().any(|own| own.name == parameter.name)
    }
}

/// Declares a formula as the struct of its parameters, each with the [`Parameter`] by which manifests give it
/// and its default:
///
/// ```text
/// formula! {
///     /// A soft gate instead of a clip.
///     ///
///     /// -A sigmoid(tau (r - 1)) 4 / tau (arXiv 2511.20347).
///     pub struct Sapo {
///         /// Temperature where A > 0.
///         pub tau_positive: f64 = TAU_POSITIVE, 1.0;
///     }
/// }
/// ```
macro_rules! formula {
    (
        $(#[doc = $doc:literal])*
        pub struct $name:ident {
            $($(#[$field_doc:meta])* pub $field:ident: $type:ty = $parameter:expr, $default:expr;)*
        }
    ) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl $crate::declaration::Declared for $name {
            const NAME: &'static str = stringify!($name);
            const DOC: &'static str = concat!($($doc, "\n"),*);
            const PARAMETERS: &'static [&'static $crate::declaration::Parameter] = &[$(&$parameter),*];

            fn read(
                _given: &dyn Fn(
                    &$crate::declaration::Parameter,
                ) -> Option<$crate::declaration::ParameterValue>,
            ) -> Self {
                Self { $($field: <$type as $crate::declaration::ParameterType>::read(_given(&$parameter), $default)),* }
            }

            fn write(&self) -> Vec<(&'static str, $crate::declaration::ParameterValue)> {
                let _parameters: Vec<(&'static str, Option<$crate::declaration::ParameterValue>)> =
                    vec![$(($parameter.name, <$type as $crate::declaration::ParameterType>::write(self.$field))),*];
                _parameters.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
            }
        }
    };
}
