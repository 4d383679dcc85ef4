//! The list of the presets, and the enum of the custom resource that is derived from it.

/// Registers presets, one line each: `module::Kind`, with the constant `PRESET` in the module.
macro_rules! register_presets {
    ($($module:ident::$kind:ident,)*) => {
        /// The presets.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum AlgorithmKind {
            $(#[doc = concat!("The preset of `", stringify!($module), ".rs`.")] $kind,)*
        }

        impl AlgorithmKind {
            /// Every preset, in the order of the documentation.
            pub const ALL: [Self; [$(Self::$kind),*].len()] = [$(Self::$kind),*];

            fn declaration(self) -> &'static Declaration {
                match self {
                    $(Self::$kind => const { &$module::PRESET },)*
                }
            }

            /// Its name in manifests.
            pub fn name(self) -> &'static str {
                self.declaration().name
            }

            /// Its documentation.
            pub fn doc(self) -> &'static str {
                self.declaration().doc
            }
        }

        rlt_algorithms::choice!(AlgorithmKind, [$($module::PRESET.name),*]);
    };
}
