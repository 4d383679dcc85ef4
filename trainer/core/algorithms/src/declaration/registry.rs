//! The list of a family's formulas, and the code that is generated from it.

/// Registers the formulas of a family, one line each: `module::Formula`. It generates
/// - the enum of their names, from which manifests choose: [`super::Family`], serde, and the schema with the
///   formulas' documentation;
/// - the enum of the formulas with their parameters, `resolve` from a name and [`super::Parameters`], and its
///   form in a resolved manifest: the name under `tag`, with the parameters in the same map;
/// - `formula`, which returns the trait object that every formula of the family implements.
macro_rules! register {
    (
        $(#[$kind_doc:meta])*
        pub names $kind:ident,
        $(#[$doc:meta])*
        pub formulas $formula:ident: $behaviour:path,
        tag $tag:literal,
        [$($module:ident::$name:ident,)*]
    ) => {
        $(pub use $module::$name;)*

        $(#[$kind_doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        pub enum $kind {
            $(#[doc = concat!("[`", stringify!($name), "`].")] $name,)*
        }

        impl $crate::declaration::Family for $kind {
            const ALL: &'static [Self] = &[$(Self::$name),*];

            fn name(self) -> &'static str {
                match self {
                    $(Self::$name => <$name as $crate::declaration::Declared>::NAME,)*
                }
            }

            fn doc(self) -> &'static str {
                match self {
                    $(Self::$name => <$name as $crate::declaration::Declared>::DOC,)*
                }
            }

            fn parameters(self) -> &'static [&'static $crate::declaration::Parameter] {
                match self {
                    $(Self::$name => <$name as $crate::declaration::Declared>::PARAMETERS,)*
                }
            }
        }

        impl schemars::JsonSchema for $kind {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($kind).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                use $crate::declaration::Family;
                $crate::declaration::choice_schema(Self::ALL.iter().map(|each| (each.name(), each.doc())))
            }
        }

        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub enum $formula {
            $(#[doc = concat!("[`", stringify!($name), "`].")] $name($name),)*
        }

        $(impl From<$name> for $formula {
            fn from(formula: $name) -> Self {
                Self::$name(formula)
            }
        })*

        impl $formula {
            /// Makes the formula of this name with the given parameters, and its defaults for the others.
            pub fn resolve(kind: $kind, given: &$crate::declaration::Parameters<$kind>) -> Self {
                let given = |parameter: &$crate::declaration::Parameter| given.get(parameter);
                match kind {
                    $($kind::$name => Self::$name($crate::declaration::Declared::read(&given)),)*
                }
            }

            /// Name of the formula in manifests.
            pub fn kind(&self) -> $kind {
                match self {
                    $(Self::$name(_) => $kind::$name,)*
                }
            }

            /// Parameters of the formula with their values, as in manifests.
            pub fn parameters(&self) -> Vec<(&'static str, $crate::declaration::ParameterValue)> {
                match self {
                    $(Self::$name(formula) => $crate::declaration::Declared::write(formula),)*
                }
            }

            pub(crate) fn formula(&self) -> &dyn $behaviour {
                match self {
                    $(Self::$name(formula) => formula,)*
                }
            }
        }

        impl serde::Serialize for $formula {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                use serde::ser::SerializeMap;
                let mut map = serializer.serialize_map(None)?;
                map.serialize_entry($tag, &self.kind())?;
                for (name, value) in self.parameters() {
                    map.serialize_entry(name, &value)?;
                }
                map.end()
            }
        }
    };
}
