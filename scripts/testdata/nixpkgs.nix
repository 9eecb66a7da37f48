# Stands for nixpkgs in scripts/homebrew-nix-test: as much of it as karve.nix uses. It fetches from the
# directory release in place of GitHub, and builds for system, with this machine's own shell and tools in path.
{
  release,
  path,
  system ? builtins.currentSystem,
}:

let
  platform = name: { system = name; } // { canExecute = other: other.system == name; };

  lib = {
    licenses.asl20.spdxId = "Apache-2.0";
    sourceTypes.binaryNativeCode.isSource = false;
  };

  # Nix itself reads the file, and compares its hash.
  fetchurl =
    { url, hash }:
    import <nix/fetchurl.nix> {
      url = "file://${release}/${baseNameOf url}";
      inherit hash;
      name = baseNameOf url;
    }
    // {
      inherit url;
    };

  stdenvNoCC = {
    buildPlatform = platform builtins.currentSystem;
    hostPlatform = platform system;
    mkDerivation =
      arguments:
      derivation (
        removeAttrs arguments [
          "meta"
          "passthru"
        ]
        // {
          name = "${arguments.pname}-${arguments.version}";
          system = builtins.currentSystem;
          builder = "/bin/sh";
          PATH = path;
          args = [
            "-euc"
            ''
              runHook() { :; }
              [ "$dontUnpack" = 1 ] || exit 1
              eval "$installPhase"
              [ "$doInstallCheck" != 1 ] || eval "$installCheckPhase"
            ''
          ];
        }
      )
      // arguments.passthru
      // {
        inherit (arguments) meta;
      };
  };
in
import "${release}/karve.nix" { inherit lib stdenvNoCC fetchurl; }
