{
  description = "@SUMMARY@";

  inputs.nixpkgs.url = "github:NixOS/nixpkgs/nixos-26.05";

  outputs = { self, nixpkgs }:
    let
      pkgs = nixpkgs.legacyPackages.x86_64-linux;
    in
    {
      packages.x86_64-linux.default = pkgs.stdenv.mkDerivation {
        pname = "localspec";
        version = "@VERSION@";
        src = pkgs.fetchurl {
          url = "@URL deb@";
          hash = "@SRI deb@";
        };
        nativeBuildInputs = [ pkgs.dpkg pkgs.autoPatchelfHook ];
        buildInputs = [ pkgs.stdenv.cc.cc.lib pkgs.zlib ];
        dontStrip = true; # the program's modules are appended to it
        unpackPhase = "dpkg-deb --extract $src .";
        installPhase = ''
          mkdir -p $out/bin
          cp -r usr/lib usr/share $out/
          ln -s $out/lib/localspec/localspec $out/bin/localspec
        '';
        meta = {
          description = "@SUMMARY@";
          homepage = "@REPOSITORY@";
          license = pkgs.lib.licenses.mit;
          platforms = [ "x86_64-linux" ];
          mainProgram = "localspec";
        };
      };
    };
}
