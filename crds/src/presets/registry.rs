//! List of the presets, and the enum of the custom resource that is derived from it.

/// Registers presets, one line each: `module::Kind`, with the constant `PRESET` in the module.
macro_rules! register_presets {
    ($($module:ident::$kind:ident,)*) => {
        /// Preset of an algorithm, as `algorithm.kind` names it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum AlgorithmKind {
            $(#[doc = concat!("The preset of `", stringify!($module), ".rs`.")] $kind,)*
        }

        impl AlgorithmKind {
            /// All presets, in the order of the documentation.
            pub const ALL: [Self; [$(Self::$kind),*].len()] = [$(Self::$kind),*];

            fn declaration(self) -> &'static Declaration {
                match self {
                    $(Self::$kind => const { &$module::PRESET },)*
                }
            }

            /// Name of the preset in manifests.
            pub fn name(self) -> &'static str {
                self.declaration().name
            }

            /// Documentation of the preset; the first paragraph is the description in the CRD.
            pub fn doc(self) -> &'static str {
                self.declaration().doc
            }
        }

        rlt_algorithms::choice!(AlgorithmKind, [$($module::PRESET.name),*]);
    };
}
