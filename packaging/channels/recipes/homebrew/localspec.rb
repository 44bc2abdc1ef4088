class Localspec < Formula
  desc "@SUMMARY@"
  homepage "@REPOSITORY@"
  version "@VERSION@"
  license "MIT"

  on_macos do
    depends_on arch: :arm64
    url "@URL macos-arm64@"
    sha256 "@SHA256 macos-arm64@"
  end

  on_linux do
    depends_on arch: :x86_64
    url "@URL linux-x86_64@"
    sha256 "@SHA256 linux-x86_64@"
  end

  def install
    bin.install Dir["localspec-*"].first => "localspec"
    chmod 0755, bin/"localspec"
    generate_completions_from_executable(bin/"localspec", "completion", shells: [:bash, :zsh, :fish])
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/localspec --version")
    assert_match "exact: yes", shell_output("#{bin}/localspec run --max-tokens 16 --stats hello 2>&1")
  end
end
